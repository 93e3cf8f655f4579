"""Where the time of one request went: from its row in the ledger and from what a plan log says of it."""
