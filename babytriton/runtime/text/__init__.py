"""The text of kernels, for people who read and edit it: the same programs, in fewer signs."""
