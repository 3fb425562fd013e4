"""One folder per paper; methods never import each other. ``palmette.registry`` names them all."""
