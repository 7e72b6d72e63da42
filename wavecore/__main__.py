"""``python -m wavecore`` is the `wavecore` command."""

from wavecore.cli import main

if __name__ == "__main__":
    main()
