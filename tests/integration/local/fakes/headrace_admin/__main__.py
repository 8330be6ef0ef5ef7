from fake_service import run

run("admin")
