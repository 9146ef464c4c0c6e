"""Step 4: code generation is a walk over the tree.

Python's ``ast.NodeVisitor`` calls ``visit_X`` for a node of kind X. The visitor below only prints
what it meets. The one in ``babytriton/frontend/codegen.py`` walks the same way, with one method
for each kind of syntax, and emits code.
"""

import ast

import babytriton as bt


@bt.jit(target="cpu")
def add():
    one = 1
    return one + one


class Walk(ast.NodeVisitor):
    def visit(self, node: ast.AST) -> None:
        print("visit", type(node).__name__)
        self.generic_visit(node)


Walk().visit(add.lower().node)


# A kind of syntax without a visit method is refused, and the message shows the place.
@bt.jit(target="cpu")
def numbers():
    yield 1


try:
    numbers.lower()
except bt.CompileError as error:
    print(error)
