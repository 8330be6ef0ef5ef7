"""Technologies behind ports that more than one service needs."""
