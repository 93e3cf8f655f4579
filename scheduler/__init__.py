"""Order and time: admits requests, makes plans, keeps the books. Never knows text, tensors or block addresses."""
