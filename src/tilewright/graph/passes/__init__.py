"""Graph passes: one file each, in the order that ``standard.STANDARD`` lists.

To add one: its file, its test, one entry in the list.
"""
