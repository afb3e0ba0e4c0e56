"""Where the histories of users are kept. History is the truth; a state is a cache of it."""
