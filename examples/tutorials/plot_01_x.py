"""
X
=
Hello.
"""
print(1)
