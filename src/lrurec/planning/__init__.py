"""What training and serving would take, before anything runs."""
