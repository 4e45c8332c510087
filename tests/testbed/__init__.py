"""What the tests with real containers run on."""
