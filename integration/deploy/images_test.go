package deploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
)

// The image holds the static binary, certificate authorities and licences, runs as a user that is not root, and has
// labels.
func TestImage(t *testing.T) {
	need.Images(t)
	if out := mustRun(t, nil, "docker", "run", "--rm", "millrace:dev", "version"); !strings.HasPrefix(out, "millrace ") {
		t.Errorf("version: %s", out)
	}
	got := strings.Fields(mustRun(t, nil, "docker", "image", "inspect", "--format",
		`{{.Config.User}} {{index .Config.Labels "org.opencontainers.image.revision"}}`, "millrace:dev"))
	revision := strings.TrimSpace(mustRun(t, nil, "git", "rev-parse", "HEAD"))
	if len(got) != 2 || got[0] != "65532:65532" || got[1] != revision {
		t.Errorf("user and revision are %v, want 65532:65532 and %s", got, revision)
	}
	id := strings.TrimSpace(mustRun(t, nil, "docker", "create", "millrace:dev"))
	defer mustRun(t, nil, "docker", "rm", id)
	// Files of the engine itself are empty.
	files := mustRun(t, nil, "bash", "-c", "docker export "+id+" | tar -tv | awk '$1 ~ /^[-l]/ && $3 > 0 {print $6}'")
	if want := "etc/ssl/certs/ca-certificates.crt\nusr/bin/millrace\nusr/share/doc/millrace/LICENSES.txt\n" +
		"usr/share/doc/millrace/copyright\n"; files != want {
		t.Errorf("the files of the image are\n%s, want\n%s", files, want)
	}
}

// Equal files give equal layers.
func TestImagesAreReproducible(t *testing.T) {
	need.Images(t)
	layers := func(image string) string {
		return mustRun(t, nil, "docker", "image", "inspect", "--format", "{{.RootFS.Layers}}", image)
	}
	mustRun(t, []string{"BUILD=--no-cache"}, "deploy/image.sh", "again", "again")
	defer mustRun(t, nil, "bash", "-c", "docker image rm millrace{,-example,-standalone}:again")
	for _, image := range []string{"millrace", "millrace-example", "millrace-standalone"} {
		if one, two := layers(image+":dev"), layers(image+":again"); one != two {
			t.Errorf("the layers of %s are\n%s, and after another build\n%s", image, one, two)
		}
	}
}

// damagedCopy is the key of the incident that the example opens.
const damagedCopy = "acme/3/samples/reports%2F07.txt/content-corrupt"

// The profile small comes up with the binary of the commit before deploy existed, and is upgraded. The example opens
// its incident, which is approved and closes. Stops in the course of a long copy, and kills of every container, lose
// nothing.
func TestSmall(t *testing.T) {
	need.Images(t)
	buildPrevious(t)
	p := newProject(t, "small")
	old := append(p.env, "DEPLOY_IMAGE=millrace:previous", "DEPLOY_EXAMPLE_IMAGE=millrace-example:previous")
	now := p.env

	p.env = old
	p.must(t, "up", "-d", "--quiet-pull", "prepare")
	p.ended(t, "prepare")
	p.must(t, "up", "-d", "--no-deps", "all")
	store(t, p, "before", 50)
	version := p.must(t, "run", "--rm", "--no-deps", "-T", "cli", "version")
	if !strings.Contains(version, "previous") {
		t.Fatalf("the version before is %s", version)
	}

	// The upgrade: migrate first, then replace the process.
	p.env = now
	p.must(t, "up", "-d", "prepare")
	p.ended(t, "prepare")
	p.must(t, "up", "-d", "all", "example")
	copied(t, p, "before", 50)
	p.ended(t, "example")
	health := mustRun(t, nil, "docker", "inspect", "--format", "{{.State.Health.Status}}", p.container("all"))
	if strings.TrimSpace(health) != "healthy" {
		t.Errorf("the health of the container is %s", health)
	}

	t.Run("incident", func(t *testing.T) {
		out, code := p.millrace(t, "incident", "list")
		if code != 0 || !strings.Contains(out, damagedCopy) || !strings.Contains(out, "awaiting-approval") {
			t.Fatalf("incident list: code %d\n%s", code, out)
		}
		if out, code := p.millrace(t, "incident", "approve", damagedCopy, "--reason", "test", "--wait"); code != 0 {
			t.Fatalf("incident approve: code %d\n%s", code, out)
		}
		if out, _ := p.millrace(t, "incident", "list"); strings.Contains(out, damagedCopy) {
			t.Fatalf("the incident is open after its repair:\n%s", out)
		}
		if out, code := p.script(t, "cmp /var/lib/millrace/{primary,vault}/samples/reports/07.txt"); code != 0 {
			t.Errorf("the copy is not repaired: %s", out)
		}
	})
	t.Run("stops", func(t *testing.T) { stops(t, p) })
	t.Run("kills", func(t *testing.T) { kills(t, p) })
	noLoss(t, p)
}

// buildPrevious builds the images millrace:previous and millrace-example:previous from the commit before the first one
// that has deploy/Dockerfile.
func buildPrevious(t *testing.T) {
	t.Helper()
	first := strings.Fields(mustRun(t, nil, "git", "log", "--diff-filter=A", "--format=%H", "--", "deploy/Dockerfile"))
	if len(first) == 0 {
		t.Fatal("git log has no commit that adds deploy/Dockerfile: clone with the history")
	}
	commit := first[len(first)-1] + "^"
	dir := t.TempDir()
	mustRun(t, nil, "bash", "-c", fmt.Sprintf("git archive %s | tar -x -C %s", commit, quote([]string{dir})))
	build := "cd " + quote([]string{dir}) + " && CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/ " +
		"-ldflags '-s -w -X github.com/millrace/millrace/cmd/app.Version=previous' " +
		"./cmd/millrace ./cmd/millrace-clickhouse"
	mustRun(t, nil, "bash", "-c", build)
	bin := filepath.Join(dir, "bin")
	for _, name := range []string{"decorator", "libchdb"} { // programs of the build, not of the release
		mustRun(t, nil, "cp", "bin/"+name, bin)
	}
	mustRun(t, []string{"BIN=" + bin}, "deploy/image.sh", "previous", "previous")
}

// store stores files in a space through the decorator, one every 80 ms, and returns when it began and ended.
func store(t *testing.T, p *project, space string, files int) (began, ended time.Time) {
	t.Helper()
	text := fmt.Sprintf(`d=$(mktemp -d); cd $d; for n in $(seq %d); do seq $n 2000 >$n.txt; done; date +%%s; `+
		`for n in $(seq %[1]d); do echo $n.txt; sleep 0.08; done | decorator `+
		`-brokers "$(echo "$MILLRACE_KAFKA__BROKERS" | tr -d '[]"')" -account acme -store 1 -space %[2]s -wait 60s `+
		`-root /var/lib/millrace/primary -outbox /var/lib/millrace/outbox-%[2]s -user e2e >&2; date +%%s`, files, space)
	out, code := p.script(t, text)
	if code != 0 {
		t.Fatalf("store files in %s: code %d\n%s", space, code, out)
	}
	var times []time.Time
	for line := range strings.Lines(out) {
		if at, err := seconds(line); err == nil {
			times = append(times, at)
		}
	}
	if len(times) != 2 {
		t.Fatalf("store files in %s: want two times in\n%s", space, out)
	}
	return times[0], times[1]
}

// seconds parses the output of date +%s.
func seconds(line string) (time.Time, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	return time.Unix(n, 0), err
}

// copied waits until store 3 has the files of a space as store 1 has them.
func copied(t *testing.T, p *project, space string, files int) {
	t.Helper()
	text := fmt.Sprintf(
		`cd /var/lib/millrace; [ "$(find vault/%s -type f | wc -l)" = %d ] && diff -rq {primary,vault}/%[1]s`, space, files)
	eventually(t, 3*time.Minute, func() string {
		out, code := p.script(t, text)
		if code != 0 {
			return fmt.Sprintf("store 3 does not have the files of %s: %s", space, out)
		}
		return ""
	})
}

// stops stops the process again and again while it copies a large item, longer than it may drain. No stop counts as a
// death of the task, which would be a dead letter after the third one.
func stops(t *testing.T, p *project) {
	args := p.args
	defer func() { p.args = args }()
	drain := filepath.Join(t.TempDir(), "drain.yaml")
	text := "services: {all: {environment: {MILLRACE_ROLES__DRAIN: 1s}}}\n"
	if err := os.WriteFile(drain, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p.args = append(slices.Clone(args), "-f", drain)
	p.must(t, "up", "-d", "--no-deps", "--wait", "all")
	text = `d=$(mktemp -d -p /var/lib/millrace); cd $d; head -c 1500M /dev/zero >large; echo large | decorator ` +
		`-brokers "$(echo "$MILLRACE_KAFKA__BROKERS" | tr -d '[]"')" -account acme -store 1 -space large -wait 60s ` +
		`-root /var/lib/millrace/primary -outbox /var/lib/millrace/outbox-large -user e2e; rm -r $d`
	if out, code := p.script(t, text); code != 0 {
		t.Fatalf("store a large file: code %d\n%s", code, out)
	}
	for stop := range 4 {
		eventually(t, time.Minute, func() string {
			if p.metric(t, `^millrace_kafka_working_tasks\{.*role="copier".*\} [1-9]`) {
				return ""
			}
			return fmt.Sprintf("no copy is running before stop %d: take a larger file", stop+1)
		})
		began := time.Now()
		p.must(t, "stop", "--timeout", "90", "all")
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("the stop took %v, with roles.drain 1s", took)
		}
		code := mustRun(t, nil, "docker", "inspect", "--format", "{{.State.ExitCode}}", p.container("all"))
		if strings.TrimSpace(code) != "0" {
			t.Errorf("the process ended with %s after a stop", code)
		}
		p.must(t, "start", "all")
	}
	copied(t, p, "large", 1)
	none(t, p, "dead", "list")
}

// kills kills each container in turn while files are stored, which takes 8 s.
func kills(t *testing.T, p *project) {
	for _, service := range []string{"all", "kafka-1", "clickhouse", "s3"} {
		space := "killed-" + service
		type moment struct {
			at  time.Time
			err error
		}
		killed := make(chan moment, 1)
		go func() {
			c := exec.Command("bash", "-c",
				fmt.Sprintf("sleep 5; docker kill %s >/dev/null && docker start %[1]s >/dev/null && date +%%s",
					p.container(service)))
			out, err := c.CombinedOutput()
			m := moment{err: err}
			if m.at, err = seconds(string(out)); m.err == nil {
				m.err = err
			}
			killed <- m
		}()
		began, ended := store(t, p, space, 100)
		m := <-killed
		if m.err != nil {
			t.Fatalf("kill and start %s: %v", service, m.err)
		}
		if m.at.Before(began) || m.at.After(ended) {
			t.Errorf("%s was killed at %v, not while files were stored, from %v to %v", service, m.at, began, ended)
		}
		copied(t, p, space, 100)
	}
}

// noLoss compares Kafka with the tables and the stores with each other.
func noLoss(t *testing.T, p *project) {
	t.Helper()
	eventually(t, 3*time.Minute, func() string {
		out, code := p.millrace(t, "verify", "--manifest")
		if code != 0 {
			return fmt.Sprintf("verify ended with %d:\n%s", code, out)
		}
		return ""
	})
	if out, code := p.millrace(t, "sweep", "start", "fixity", "--all", "--wait"); code != 0 {
		t.Errorf("a check of all copies ended with %d:\n%s", code, out)
	}
	none(t, p, "incident", "list")
}

// none requires that a command lists nothing.
func none(t *testing.T, p *project, command ...string) {
	t.Helper()
	out, code := p.millrace(t, append(command, "-o", "json")...)
	if code != 0 || !strings.HasSuffix(strings.TrimSpace(out), "[]") {
		t.Errorf("%v: code %d\n%s", command, code, out)
	}
}

// The deb is installed, upgraded, removed and purged in a container of Debian.
func TestPackage(t *testing.T) {
	need.Images(t)
	dir := t.TempDir()
	for _, version := range []string{"v0.0.1", "v0.0.2"} {
		mustRun(t, nil, "bash", "-c", "rm -f dist/millrace*.deb && make packages VERSION="+version)
		mustRun(t, nil, "bash", "-c", "mv dist/millrace*.deb "+quote([]string{filepath.Join(dir, version+".deb")}))
	}
	tests, err := filepath.Abs(filepath.Join(root, "deploy/packages"))
	if err != nil {
		t.Fatal(err)
	}
	base := mustRun(t, nil, "bash", "-c", `base=$(sed -n 's/^ARG DEBIAN=//p' deploy/Dockerfile); `+
		`docker image inspect "$base" >/dev/null 2>&1 || base=millrace-local/debian:bookworm; echo "$base"`)
	out := mustRun(t, nil, "docker", "run", "--rm", "-v", dir+":/debs:ro", "-v", tests+":/tests:ro",
		strings.TrimSpace(base), "/tests/test-install.sh", "/debs/v0.0.1.deb", "/debs/v0.0.2.deb")
	if checks := strings.Count(out, "ok: "); checks < 15 {
		t.Errorf("%d checks:\n%s", checks, out)
	}
}

// The commands of docs/deploy/compose.md, in its order, for the full form: three brokers and three processes.
func TestQuickStart(t *testing.T) {
	need.Images(t)
	page, err := os.ReadFile(filepath.Join(root, "docs/deploy/compose.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() // setup.sh writes deploy/.env
	mustRun(t, nil, "cp", "-r", "deploy", dir)
	script := "set -euo pipefail; shopt -s expand_aliases; cd " + quote([]string{dir}) + "\n"
	for _, block := range regexp.MustCompile("(?s)```sh test=integration/deploy.TestQuickStart\n(.*?)```").
		FindAllStringSubmatch(string(page), -1) {
		script += block[1]
	}
	for _, command := range []string{"deploy/compose/setup.sh small", "incident approve", "down --volumes"} {
		if !strings.Contains(script, command) {
			t.Fatalf("the page has no command %q", command)
		}
	}
	script = strings.ReplaceAll(script, "setup.sh small", "setup.sh")
	const file = "docker compose -f deploy/compose.yaml"
	program, err := filepath.Abs(filepath.Join(root, "bin/tools/docker-compose"))
	if err != nil {
		t.Fatal(err)
	}
	if _, code := run(t, nil, "docker", "compose", "version"); code == 0 {
		program = "docker compose"
	}
	local := " -f deploy/compose.local.yaml"
	if os.Getenv("PUBLIC_IMAGES") != "" {
		local = ""
	}
	script = strings.ReplaceAll(script, file, program+" -f deploy/compose.yaml"+local)
	env := []string{fmt.Sprintf("COMPOSE_PROJECT_NAME=millrace-quick-%d", os.Getpid())}
	for _, port := range []string{"EVENTS", "COPIES", "RECORDS"} {
		env = append(env, "DEPLOY_"+port+"_PORT="+freePort(t))
	}
	out, code := run(t, env, "bash", "-c", script)
	if code != 0 {
		_, _ = run(t, env, "bash", "-c", "cd "+quote([]string{dir})+"; "+program+" -f deploy/compose.yaml"+local+
			" down --volumes --timeout 5")
		t.Fatalf("exit code %d\n%s", code, out)
	}
	for _, want := range []string{
		damagedCopy, "awaiting-approval", "row 2 fail content-corrupt", "the incident is closed",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// Compose accepts the files of both forms, with public and with local images, and names what is missing.
func TestComposeConfig(t *testing.T) {
	need.Images(t)
	for _, size := range []string{"full", "small"} {
		file := filepath.Join(t.TempDir(), size)
		mustRun(t, nil, "deploy/compose/setup.sh", size, file)
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the file with passwords: %v, %v", info.Mode(), err)
		}
		for _, local := range [][]string{nil, {"-f", "deploy/compose.local.yaml"}} {
			args := append([]string{"--env-file", file, "-f", "deploy/compose.yaml"}, local...)
			mustRun(t, nil, "bash", "-c", compose(append(args, "config", "--quiet")))
		}
	}
	if out, code := run(t, nil, "bash", "-c",
		compose([]string{"--env-file", "/dev/null", "-f", "deploy/compose.yaml", "config", "--quiet"})); code == 0 ||
		!strings.Contains(out, "run deploy/compose/setup.sh once") {
		t.Errorf("without passwords: code %d\n%s", code, out)
	}
}
