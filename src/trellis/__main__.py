"""python -m trellis"""

from trellis.cli import main

if __name__ == "__main__":
    main()
