"""What a device is: limits, peaks, measured roofs, and the formulas over them.

Input -> Output: a name, or the machine itself -> records with their sources; records -> bounds.
Guarantees: every number is cited or measured; what nobody published is absent, never guessed.
Not here: measuring a CPU (codegen.cpu.probe), printing (cli.device).
"""
