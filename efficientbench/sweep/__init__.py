"""Many runs as one: which they are, a queue of them on disk, and the loop that starts, watches and reports them."""
