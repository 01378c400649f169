"""python -m trellis"""

from trellis.cli.main import main

if __name__ == "__main__":
    main()
