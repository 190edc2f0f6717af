"""What generation costs, measured."""
