from fake_service import run

run("broker")
