"""The check of sizes names functions by the lines of their statements."""

import check_file_sizes


def _function(num_statements: int, docstring: bool = False) -> str:
    lines = ["def made(", "    a,", "):"]
    if docstring:
        lines += ['    """' + "words\n" * 70 + '    """']
    return "\n".join(lines + ["    a = 1"] * num_statements) + "\n"


def test_a_function_of_sixty_lines_passes() -> None:
    assert list(check_file_sizes.long_functions(_function(60, docstring=True))) == []


def test_a_longer_function_is_named_with_its_length() -> None:
    assert list(check_file_sizes.long_functions(_function(61))) == [("made", 61)]
    inside = "class A:\n" + "".join(f"    {line}\n" for line in _function(75).splitlines())
    assert list(check_file_sizes.long_functions(inside)) == [("made", 75)]
