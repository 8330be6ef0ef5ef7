from fake_service import run

run("coordinator")
