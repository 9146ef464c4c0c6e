"""Running what was built: guards, launches, and the way between torch and TVM."""
