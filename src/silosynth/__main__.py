"""``python -m silosynth``."""

from silosynth.cli import main

if __name__ == "__main__":
    main()
