"""What `phasescope fleet` says when it cannot do what it is asked."""

from __future__ import annotations

from pathlib import Path

from tests.support.servers.server import free_port
from tests_fleet.cluster import Cluster, Fleet, phasescope_fleet
from tests_fleet.environments import variables


def test_without_a_cluster_the_command_says_how_to_start_one(tmp_path: Path) -> None:
    (tmp_path / "fleet.key").write_text("0123456789abcdef" * 2)
    file = tmp_path / "fleet.toml"
    file.write_text('key_file = "fleet.key"\n[engines.main]\n')
    address = f"127.0.0.1:{free_port()}"
    done = phasescope_fleet("deploy", str(file), "--address", address, env=variables())
    assert done.returncode == 2
    assert "ray start --head" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_fleet_that_cannot_start_says_why_and_can_be_stopped(cluster: Cluster) -> None:
    fleet = Fleet(cluster)
    fleet.write(engines=1)
    fleet.file.write_text(fleet.file.read_text().replace("dummy:tiny", "dummy:none"))
    try:
        done = cluster.phasescope("deploy", str(fleet.file))
        assert done.returncode == 2
        last = done.stderr.splitlines()[-1]
        assert last.startswith("phasescope: Ray Serve could not start the fleet"), last
        assert "dummy:none" in done.stdout + done.stderr, "the server's own words"
    finally:
        stopped = cluster.phasescope("stop")
        fleet.client.close()
    assert stopped.returncode == 0
    assert not fleet.servers()
