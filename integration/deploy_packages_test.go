package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/need"
)

// A packager makes packages of a small program in a copy of what nfpm.yaml reads, and has stubs of the programs that
// change the system.
type packager struct {
	dir, calls string
	env        []string
}

func newPackager(t *testing.T) *packager {
	t.Helper()
	dir := t.TempDir()
	p := &packager{dir: dir, calls: filepath.Join(dir, "calls")}
	p.env = append(os.Environ(), "PATH="+filepath.Join(dir, "stubs")+":"+os.Getenv("PATH")+":/usr/sbin:/sbin",
		"SOURCE_DATE_EPOCH=1700000000", "ARCH=amd64", "SYSTEMD_DIR="+dir) // as if systemd runs
	for _, tree := range []string{"deploy/packages", "deploy/systemd"} {
		must(t, os.CopyFS(filepath.Join(dir, tree), os.DirFS(filepath.Join(root, tree))))
	}
	for name, text := range map[string]string{"LICENSE": "a licence", "dist/LICENSES.txt": "licences"} {
		p.write(t, name, text)
	}
	// Units run as the file running says.
	units := fmt.Sprintf(`[ "$1" != list-units ] || cat '%s'`, filepath.Join(dir, "running"))
	p.setRunning(t, "")
	const stub = "#!/bin/sh\necho \"${0##*/} $*\" >>'%s'\n%s\n"
	for name, then := range map[string]string{"getent": "exit 2", "groupadd": "", "useradd": "", "systemctl": units} {
		p.write(t, "stubs/"+name, fmt.Sprintf(stub, p.calls, then))
	}
	return p
}

func (p *packager) write(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(p.dir, name)
	must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o755)))
}

// setRunning sets the list of the running units.
func (p *packager) setRunning(t *testing.T, units string) {
	t.Helper()
	p.write(t, "running", units)
}

// run runs a command, and returns what it printed and the calls of the stubs since the last run. It must succeed.
func (p *packager) run(t *testing.T, name string, args ...string) (out, calls string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = p.dir, p.env
	printed, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, printed)
	}
	called, err := os.ReadFile(p.calls)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	os.Remove(p.calls)
	return string(printed), string(called)
}

// pack makes a package whose program prints the version, and returns its path.
func (p *packager) pack(t *testing.T, kind, version string) string {
	t.Helper()
	nfpm, err := filepath.Abs(filepath.Join(root, "bin", "deploy-tools", "nfpm"))
	must(t, err)
	if _, err := os.Stat(nfpm); err != nil {
		need.Missing(t, need.Packager(), err)
	}
	p.write(t, "bin/millrace", "#!/bin/sh\necho "+version+"\n")
	file := filepath.Join(p.dir, version+"."+kind)
	p.env = append(p.env, "PACKAGE_VERSION="+version)
	p.run(t, nfpm, "package", "-f", "deploy/packages/nfpm.yaml", "-p", kind, "-t", file)
	return file
}

// The sample configuration in the packages has no fault.
func TestPackagedConfiguration(t *testing.T) {
	file := filepath.Join(root, "deploy", "packages", "millrace.yaml")
	cfg, _, err := config.Load(config.Sources{File: file, Env: []string{}})
	must(t, err)
	if len(cfg.Accounts) != 1 || cfg.Policies.Folder != "/etc/millrace/policies" {
		t.Errorf("got %+v", cfg)
	}
}

// The same input gives the same bytes at another time.
func TestPackagesAreReproducible(t *testing.T) {
	need.Integration(t)
	for _, kind := range []string{"deb", "rpm"} {
		var packages [2][]byte
		for i := range packages {
			p := newPackager(t)
			made := time.Unix(1800000000+int64(i)*3600, 0)
			err := os.Chtimes(filepath.Join(p.dir, "LICENSE"), made, made)
			text, bad := os.ReadFile(p.pack(t, kind, "1.0"))
			must(t, errors.Join(err, bad))
			packages[i] = text
		}
		if !bytes.Equal(packages[0], packages[1]) {
			t.Errorf("two packages of kind %s differ", kind)
		}
	}
}

// What the scripts do with the arguments of both package managers. Only a removal stops and disables units.
func TestPackageScripts(t *testing.T) {
	p := newPackager(t)
	const users = "getent group millrace\ngroupadd --system millrace\ngetent passwd millrace\n" +
		"useradd --system --gid millrace --home-dir /var/lib/millrace --no-create-home --shell /usr/sbin/nologin " +
		"--comment millrace millrace\n"
	const reload = "systemctl daemon-reload\n"
	const configured = reload +
		"systemctl list-units --no-legend --state=active,activating,reloading millrace@*.service\n"
	const stopped = "systemctl stop millrace@*.service\nsystemctl disable millrace@.service\n"
	const started = "millrace: nothing is started."
	const upgraded = "millrace: units that run keep the old program."
	const one = "  millrace@sink.service loaded active running millrace, roles sink\n"
	for name, tt := range map[string]struct {
		args       string
		out, calls string // the beginning of the output; the calls where systemd runs
		running    string
	}{
		"preinstall":              {"preinstall.sh install", "", users, ""},
		"install, deb":            {"postinstall.sh configure", started, configured, ""},
		"install, rpm":            {"postinstall.sh 1", started, configured, ""},
		"upgrade, deb":            {"postinstall.sh configure 0.9", upgraded, configured, one},
		"upgrade, rpm":            {"postinstall.sh 2", upgraded, configured, one},
		"install after a removal": {"postinstall.sh configure 0.9", started, configured, ""},
		"before an upgrade, deb":  {"preremove.sh upgrade 1.1", "", "", one},
		"before an upgrade, rpm":  {"preremove.sh 1", "", "", one},
		"after an upgrade, deb":   {"postremove.sh upgrade 1.1", "", "", one},
		"after an upgrade, rpm":   {"postremove.sh 1", "", "", one},
		"before the removal, deb": {"preremove.sh remove", "", stopped, one},
		"before the removal, rpm": {"preremove.sh 0", "", stopped, one},
		"after the removal, deb":  {"postremove.sh remove", "", reload, ""},
		"after the removal, rpm":  {"postremove.sh 0", "", reload, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p.setRunning(t, tt.running)
			args := strings.Fields(tt.args)
			args[0] = filepath.Join(p.dir, "deploy/packages", args[0])
			out, calls := p.run(t, "/bin/sh", args...)
			if !strings.HasPrefix(out, tt.out) || tt.out == "" && out != "" {
				t.Errorf("it printed %q, want %q", out, tt.out)
			}
			if calls != tt.calls {
				t.Errorf("it called %q, want %q", calls, tt.calls)
			}
		})
	}
}

// The deb in a directory, by dpkg with a database of its own and with stubs: what it contains, an upgrade, a removal
// that keeps what is not the package's own, a purge. Users are not covered: deploy/packages/test-install.sh is for
// those.
func TestDeb(t *testing.T) {
	need.Integration(t)
	if _, err := exec.LookPath("dpkg"); err != nil {
		need.Missing(t, need.Kernel("dpkg"), err)
	}
	if os.Getuid() != 0 {
		need.Missing(t, need.Kernel("root, as dpkg changes owners"), "another user")
	}
	p := newPackager(t)
	one, two := p.pack(t, "deb", "1.0"), p.pack(t, "deb", "1.1~rc1")
	system := filepath.Join(p.dir, "system")
	admin := filepath.Join(system, "var/lib/dpkg")
	for _, dir := range []string{"updates", "info", "triggers"} {
		p.write(t, filepath.Join("system/var/lib/dpkg", dir, ".keep"), "")
	}
	p.write(t, "system/var/lib/dpkg/status", "")
	dpkg := func(args ...string) (string, string) {
		return p.run(t, "dpkg", append([]string{"--instdir=" + system, "--admindir=" + admin, "--log=/dev/null",
			"--force-script-chrootless", "--force-depends"}, args...)...)
	}
	has := func(when string, names ...string) {
		t.Helper()
		for _, name := range names {
			if _, err := os.Stat(filepath.Join(system, name)); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	const conf = "etc/millrace/millrace.yaml"

	contents, _ := p.run(t, "dpkg-deb", "--contents", one)
	for name, want := range map[string]string{
		"./usr/bin/millrace":                                   "-rwxr-xr-x root/root",
		"./usr/lib/systemd/system/millrace@.service":           "-rw-r--r-- root/root",
		"./etc/millrace/":                                      "drwxr-x--- root/millrace",
		"./etc/millrace/millrace.yaml":                         "-rw-r----- root/millrace",
		"./etc/millrace/environment":                           "-rw------- root/root",
		"./etc/millrace/policies/":                             "drwxr-x--- root/millrace",
		"./etc/millrace/policies/acme-duplication-policy.yaml": "-rw-r----- root/millrace",
		"./etc/millrace/policies/duplication-accounts.json":    "-rw-r----- root/millrace",
		"./var/lib/millrace/":                                  "drwxr-x--- millrace/millrace",
		"./usr/share/doc/millrace/LICENSES.txt":                "-rw-r--r-- root/root",
		"./usr/share/doc/millrace/copyright":                   "-rw-r--r-- root/root",
		"./etc/needrestart/conf.d/millrace.conf":               "-rw-r--r-- root/root",
	} {
		if !regexp.MustCompile(`(?m)^` + want + ` .* ` + regexp.QuoteMeta(name) + `$`).MatchString(contents) {
			t.Errorf("the deb has not %s %s:\n%s", want, name, contents)
		}
	}
	if needs, _ := p.run(t, "dpkg-deb", "--field", one, "Pre-Depends"); needs != "passwd\n" {
		t.Errorf("the deb depends on %q before its installation, want passwd", needs)
	}
	conffiles, _ := p.run(t, "dpkg-deb", "--info", one, "conffiles")
	list := strings.Fields(conffiles)
	slices.Sort(list)
	if got, want := strings.Join(list, " "), "/etc/millrace/environment /etc/millrace/millrace.yaml "+
		"/etc/millrace/policies/acme-duplication-policy.yaml /etc/millrace/policies/duplication-accounts.json "+
		"/etc/needrestart/conf.d/millrace.conf"; got != want {
		t.Errorf("got the configuration files %s, want %s", got, want)
	}

	out, calls := dpkg("--install", one)
	if !strings.Contains(out, "nothing is started") || !strings.Contains(calls, "useradd --system") ||
		regexp.MustCompile(`systemctl (enable|start|restart|preset)`).MatchString(calls) {
		t.Errorf("installation: %s, calls %s", out, calls)
	}
	has("installation", "usr/bin/millrace", conf, "var/lib/millrace")

	p.write(t, path.Join("system", conf), "mine: {}\n")
	p.write(t, "system/etc/millrace/password", "a secret")
	p.write(t, "system/var/lib/millrace/data", "data")
	p.setRunning(t, "  millrace@sink.service loaded active running millrace, roles sink\n")
	out, calls = dpkg("--install", two)
	if !strings.Contains(out, "units that run keep the old program") ||
		regexp.MustCompile(`systemctl (enable|disable|start|stop|restart|try-restart|preset)`).MatchString(calls) {
		t.Errorf("upgrade: %s, calls %s", out, calls)
	}
	program, err := os.ReadFile(filepath.Join(system, "usr/bin/millrace"))
	mine, err2 := os.ReadFile(filepath.Join(system, conf))
	if err != nil || err2 != nil || !strings.Contains(string(program), "1.1~rc1") || string(mine) != "mine: {}\n" {
		t.Errorf("upgrade: got the program %q and the configuration %q: %v %v", program, mine, err, err2)
	}

	_, calls = dpkg("--remove", "millrace")
	if !strings.Contains(calls, "systemctl disable millrace@.service") || strings.Contains(calls, "userdel") {
		t.Errorf("removal: calls %s", calls)
	}
	has("removal", conf, "etc/millrace/password", "etc/millrace/policies/duplication-accounts.json",
		"var/lib/millrace/data")
	if _, err := os.Stat(filepath.Join(system, "usr/bin/millrace")); err == nil {
		t.Error("removal: the program is still there")
	}

	p.setRunning(t, "")
	if out, _ = dpkg("--install", two); !strings.Contains(out, "nothing is started") {
		t.Errorf("installation after the removal: %s", out)
	}

	out, _ = dpkg("--purge", "millrace")
	has("purge", "var/lib/millrace/data")
	if _, err := os.Stat(filepath.Join(system, "etc/millrace")); err == nil ||
		!strings.Contains(out, "kept are /var/lib/millrace") {
		t.Errorf("purge: the configuration is still there, or it does not say what it keeps: %s", out)
	}
}

// needrestart, which Debian's apt may run after an upgrade, lists the units and restarts none of them.
func TestNeedrestart(t *testing.T) {
	const script = `our %nrconf = (override_rc => {qr(^dbus) => 0});
eval do { local(@ARGV, $/) = shift; <> };
die $@ if $@;
for my $unit (qw(millrace@sink.service millrace@planner\x2csteward.service dbus.service other.service)) {
	my ($re) = grep { $unit =~ /$_/ } keys %{$nrconf{override_rc}};
	print $unit, " ", defined($re) ? $nrconf{override_rc}->{$re} : 1, "\n";
}
`
	perl, err := exec.LookPath("perl")
	if err != nil {
		need.Missing(t, need.Program("perl"), err)
	}
	out, err := exec.CommandContext(t.Context(), perl, "-e", script, // as needrestart reads it
		filepath.Join(root, "deploy/packages/needrestart.conf")).CombinedOutput()
	const want = "millrace@sink.service 0\nmillrace@planner\\x2csteward.service 0\ndbus.service 0\nother.service 1\n"
	if err != nil || string(out) != want {
		t.Errorf("got %s (%v), want %s", out, err, want)
	}
}
