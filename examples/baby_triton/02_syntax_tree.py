"""Step 2: from source text to a syntax tree.

The first stage, ``lower``, reads the function's source from its file and parses it. Its ``node``
is the function's part of the tree, as Python's own ``ast`` module makes it.
"""

import ast

import babytriton as bt


@bt.jit(target="cpu")
def add():
    pass


lowered = add.lower()
print(ast.dump(lowered.node))

# Line numbers are those of this file. Messages about the function point at them.
print("the definition is in line", lowered.node.lineno)

# The same tree, indented, and written as Python again.
compiled = lowered.compile()
print(compiled.source("ast"))
print(compiled.source("python"))
