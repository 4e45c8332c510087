"""What a contributor runs and a user never needs: links, generated parts of the documents."""
