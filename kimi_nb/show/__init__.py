"""Display values in notebooks and terminals: tables, texts, and the style of pictures."""
