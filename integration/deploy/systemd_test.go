package deploy_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
)

// systemdImage is Debian with systemd and rpm; deploy/local/images.sh makes it.
const systemdImage = "millrace-local/systemd:bookworm"

// packages makes packages of bin/millrace of two versions, and returns their directory.
func packages(t *testing.T, kind string) (dir string, old, newer string) {
	t.Helper()
	dir = t.TempDir()
	files := [2]string{"v1." + kind, "v2." + kind}
	for i, file := range files {
		mustRun(t, []string{"SOURCE_DATE_EPOCH=1700000000", fmt.Sprintf("PACKAGE_VERSION=0.0.%d", i+1)}, "bash", "-c",
			"ARCH=$(go env GOARCH) bin/deploy-tools/nfpm package -f deploy/packages/nfpm.yaml -p "+kind+" -t "+
				quote([]string{filepath.Join(dir, file)}))
	}
	return dir, files[0], files[1]
}

// The packages are installed, upgraded and removed, and the deb is purged, in a container.
func TestPackages(t *testing.T) {
	need.Images(t)
	scripts, err := filepath.Abs(filepath.Join(root, "deploy/packages"))
	must(t, err)
	for _, kind := range []string{"deb", "rpm"} {
		t.Run(kind, func(t *testing.T) {
			dir, old, newer := packages(t, kind)
			out := mustRun(t, nil, "docker", "run", "--rm", "-v", dir+":/packages:ro", "-v", scripts+":/tests:ro",
				systemdImage, "/tests/test-install.sh", "/packages/"+old, "/packages/"+newer)
			if checks := strings.Count(out, "ok: "); checks < 25 {
				t.Errorf("%d checks:\n%s", checks, out)
			}
		})
	}
}

// A machine is a container with a systemd of its own, in the network of a project.
type machine struct{ name string }

func newMachine(t *testing.T, p *project, packages string) machine {
	t.Helper()
	m := machine{p.name + "-machine"}
	// The sandbox of units needs mounts. The machine has not the other rights of a privileged container.
	mustRun(t, nil, "docker", "run", "--detach", "--name", m.name, "--network", p.name+"_default",
		"--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
		"--cgroupns", "host", "-v", "/sys/fs/cgroup:/sys/fs/cgroup", "--tmpfs", "/run", "--tmpfs", "/run/lock",
		"--env", "container=docker", "-v", packages+":/packages:ro", systemdImage)
	t.Cleanup(func() {
		out, err := command(nil, "docker", "rm", "--force", "--volumes", m.name)
		if err != nil {
			t.Errorf("remove the machine: %v\n%s", err, out)
		}
	})
	eventually(t, func() string {
		out, _ := m.run(t, "systemctl is-system-running || true")
		if state := strings.TrimSpace(out); state != "running" && state != "degraded" {
			return "systemd is " + state
		}
		return ""
	})
	return m
}

// run runs a shell script in the machine as root and returns its output and exit code.
func (m machine) run(t *testing.T, script string) (string, int) {
	t.Helper()
	return run(t, nil, "docker", "exec", m.name, "bash", "-c", "set -euo pipefail; "+script)
}

func (m machine) must(t *testing.T, script string) string {
	t.Helper()
	out, code := m.run(t, script)
	if code != 0 {
		journal, _ := m.run(t, "journalctl --no-pager --lines 60 --unit 'millrace@*'")
		t.Fatalf("%s: exit code %d\n%s\n%s", script, code, out, journal)
	}
	return strings.TrimSpace(out)
}

// unitName is the instance that the test runs.
const unitName = "millrace@all"

// show returns a property of the unit.
func (m machine) show(t *testing.T, property string) string {
	t.Helper()
	return m.must(t, "systemctl show --value --property "+property+" "+unitName)
}

// ready waits until the unit is active and reports that it is ready, after more than the given number of restarts.
func (m machine) ready(t *testing.T, restarts string) {
	t.Helper()
	eventually(t, func() string {
		state := fmt.Sprint(m.show(t, "ActiveState"), " ", m.show(t, "StatusText"))
		if state != "active ready" || m.show(t, "NRestarts") == restarts {
			return "the unit is " + state
		}
		return ""
	})
}

// The deb, as docs/deploy/bare-machines.md installs it, under a running systemd with the Kafka and the ClickHouse of
// compose.yaml: the messages of start, stop and watchdog, the sandbox, an upgrade beside a running unit, and a removal.
func TestUnitRuns(t *testing.T) {
	need.Images(t)
	p := newProject(t, "small")
	p.must(t, "up", "-d", "--quiet-pull", "--wait", "kafka-1", "clickhouse")
	dir, old, newer := packages(t, "deb")
	m := newMachine(t, p, dir)
	m.must(t, "dpkg --install /packages/"+old)
	m.configure(t, p)

	t.Run("start", func(t *testing.T) {
		m.must(t, "systemctl start "+unitName) // it waits for READY=1
		if state := m.show(t, "ActiveState"); state != "active" {
			t.Errorf("the unit is %s", state)
		}
		m.ready(t, "")
		if user := m.must(t, "stat --format=%U /proc/$(systemctl show --value -p MainPID "+unitName+")"); user != "millrace" {
			t.Errorf("it runs as %s", user)
		}
		m.must(t, "mkdir /srv/archive/photos; echo hello >/srv/archive/photos/1.txt")
		m.copied(t, "photos/1.txt")
	})
	t.Run("stop", func(t *testing.T) { stopOfUnit(t, m) })
	t.Run("watchdog", func(t *testing.T) { watchdog(t, m) })
	t.Run("invalid", func(t *testing.T) { invalidUnit(t, m) })
	t.Run("upgrade", func(t *testing.T) {
		pid := m.show(t, "MainPID")
		out := m.must(t, "dpkg --install /packages/"+newer)
		if !strings.Contains(out, "systemctl restart 'millrace@*'") {
			t.Errorf("the upgrade printed\n%s", out)
		}
		if now := m.show(t, "MainPID"); now != pid || pid == "0" {
			t.Errorf("the process is %s, and was %s before the upgrade", now, pid)
		}
		m.must(t, "systemctl restart 'millrace@*'")
		m.ready(t, "")
	})
	t.Run("removal", func(t *testing.T) {
		m.must(t, "systemctl enable "+unitName+"; dpkg --remove millrace")
		if state := m.show(t, "ActiveState"); state != "inactive" {
			t.Errorf("after the removal the unit is %s", state)
		}
		if links := m.must(t, "find /etc/systemd/system -name 'millrace@*.service'"); links != "" {
			t.Errorf("after the removal these units are enabled: %s", links)
		}
		m.must(t, "test -s /srv/copies/photos/1.txt; test -e /etc/millrace/millrace.yaml")
	})
}

// configure adapts the sample configuration to the project, and prepares stores, tables and topics, with the commands
// of the page.
func (m machine) configure(t *testing.T, p *project) {
	t.Helper()
	password := mustRun(t, nil, "bash", "-c", "sed -n s/^DEPLOY_CLICKHOUSE_PASSWORD=//p "+quote([]string{p.secrets}))
	m.must(t, `mkdir -p /srv/archive /srv/copies; echo index >/srv/archive/index.txt; chown millrace /srv/copies
cat >>/etc/millrace/environment <<END
MILLRACE_KAFKA__BROKERS=["kafka-1:9092"]
MILLRACE_KAFKA__REPLICATION=1
MILLRACE_KAFKA__MIN_INSYNC=1
MILLRACE_CLICKHOUSE__ADDRESSES=["clickhouse:9000"]
MILLRACE_CLICKHOUSE__USER=millrace
MILLRACE_CLICKHOUSE__PASSWORD=env:CLICKHOUSE_PASSWORD
MILLRACE_HTTP__LISTEN=127.0.0.1:8080
MILLRACE_ROLES__DRAIN=1s
CLICKHOUSE_PASSWORD=`+strings.TrimSpace(password)+`
END
mkdir -p /etc/systemd/system/millrace@.service.d
cat >/etc/systemd/system/millrace@.service.d/override.conf <<END
[Service]
ReadWritePaths=/srv/copies
WatchdogSec=20s
RestartSec=1s
END
systemctl daemon-reload
as="systemd-run --quiet --pipe --wait --collect --uid=millrace --property=EnvironmentFile=/etc/millrace/environment"
for command in "config check" "store init acme/2" "store check" migrate; do
	$as millrace $command --config /etc/millrace/millrace.yaml
done`)
}

// copied waits until store 2 has a file as the tree has it.
func (m machine) copied(t *testing.T, file string) {
	t.Helper()
	eventually(t, func() string {
		out, code := m.run(t, "cmp /srv/archive/"+file+" /srv/copies/"+file)
		if code != 0 {
			return out
		}
		return ""
	})
}

// stopOfUnit stops the unit while it copies an item, longer than it may drain. The process ends by itself, and the next
// one copies the item.
func stopOfUnit(t *testing.T, m machine) {
	m.must(t, "mkdir /srv/archive/large; truncate --size 3G /srv/archive/large/file")
	eventually(t, func() string {
		_, code := m.run(t, `exec 3<>/dev/tcp/127.0.0.1/8080; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; `+
			`grep --quiet -E '^millrace_kafka_working_tasks\{.*role="copier".*\} [1-9]' <&3`)
		if code != 0 {
			return "no copy is running: take a larger file"
		}
		return ""
	})
	began := time.Now()
	m.must(t, "systemctl stop "+unitName)
	if took := time.Since(began); took > time.Minute { // systemd would wait for 5
		t.Errorf("the stop took %v, with roles.drain 1s", took)
	}
	if state := fmt.Sprint(m.show(t, "Result"), " ", m.show(t, "ExecMainStatus")); state != "success 0" {
		t.Errorf("after the stop the unit has %s", state)
	}
	m.must(t, "systemctl start "+unitName)
	m.copied(t, "large/file")
}

// watchdog suspends the process: systemd aborts it and starts another one.
func watchdog(t *testing.T, m machine) {
	before := m.show(t, "NRestarts")
	m.must(t, "kill -STOP "+m.show(t, "MainPID"))
	m.ready(t, before)
	journal := m.must(t, "journalctl --no-pager --unit "+unitName)
	for _, want := range []string{"Watchdog timeout", "SIGABRT: abort", "goroutine 1 "} {
		if !strings.Contains(journal, want) {
			t.Errorf("the journal has no %q:\n%s", want, journal)
		}
	}
}

// invalidUnit starts the unit with an invalid configuration, which is final, and corrects it.
func invalidUnit(t *testing.T, m machine) {
	m.must(t, "systemctl stop "+unitName+"; echo 'no-such-setting: 1' >>/etc/millrace/millrace.yaml")
	if out, code := m.run(t, "systemctl start "+unitName); code == 0 {
		t.Errorf("the unit starts with an invalid configuration: %s", out)
	}
	state := fmt.Sprint(m.show(t, "ActiveState"), " ", m.show(t, "ExecMainStatus"), " ", m.show(t, "NRestarts"))
	if state != "failed 2 0" {
		t.Errorf("state, exit code and restarts are %s", state)
	}
	m.must(t, "sed -i /no-such-setting/d /etc/millrace/millrace.yaml; systemctl start "+unitName)
	m.ready(t, "")
}
