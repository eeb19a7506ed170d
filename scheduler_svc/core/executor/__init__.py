"""One executor as the scheduler sees it, for one epoch: its blocks, lanes and plans in flight."""
