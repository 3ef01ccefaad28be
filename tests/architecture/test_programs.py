import ast

from tests.architecture.test_size import PRODUCT, files


def test_a_program_ends_its_file():
    """A definition below the line that runs a module as a program would come too late for it."""
    for path in (path for package in PRODUCT for path in files(package, ".py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        programs = [
            node
            for node in body
            if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        ]
        assert programs in ([], body[-1:]), path
