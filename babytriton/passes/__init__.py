"""IRModule -> IRModule: what happens between the Relax program and the code generator."""
