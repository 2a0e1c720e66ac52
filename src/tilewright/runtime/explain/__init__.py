"""Collects what an engine knows of itself into an explanation.

Input -> Output: a program with its decisions, a profile, roofs -> ``report.explanation`` records.
Not here: rendering (report), measuring (runtime.profile), building (compiler).
"""
