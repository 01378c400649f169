"""python -m trellis"""

from trellis.cli.parser import main

if __name__ == "__main__":
    main()
