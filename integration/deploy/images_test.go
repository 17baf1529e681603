package deploy_test

import (
	"cmp"
	"fmt"
	"os"
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

// The profile small comes up with the program of the commit before. If formats are equal, it is upgraded; otherwise
// this program refuses what that one made, and begins with new tables and stores. The example opens its incident, which
// is approved and closes. Stops in the course of a long copy, and kills of every container, lose nothing.
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

	p.env = now
	refusal := refusalOfPrevious(t)
	if refusal != "" {
		out, code := p.script(t, "/usr/share/millrace/prepare.sh")
		if code == 0 || !regexp.MustCompile(refusal).MatchString(out) {
			t.Fatalf("prepare ended with %d, want the refusal %q:\n%s", code, refusal, out)
		}
		p.must(t, "down", "--volumes")
	}
	// The upgrade: migrate first, then replace the process.
	p.must(t, "up", "-d", "prepare")
	p.ended(t, "prepare")
	if refusal != "" {
		p.must(t, "up", "-d", "--no-deps", "all")
		store(t, p, "before", 50)
	}
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

// previous is the commit before this one, or that of PREVIOUS.
func previous() string { return cmp.Or(os.Getenv("PREVIOUS"), "HEAD^") }

// refusalOfPrevious returns what the refusal of tables or stores of the previous commit says, or "" if their formats
// are those of this commit.
func refusalOfPrevious(t *testing.T) string {
	t.Helper()
	changed := func(args ...string) bool {
		return mustRun(t, nil, "git", append([]string{"diff", "--name-only", previous()}, args...)...) != ""
	}
	switch {
	case changed("--diff-filter=a", "--", "sinks/clickhouse/migrations/*.sql"):
		return "another build of millrace made its tables.*configure a new database"
	case changed("-G^const format = ", "--", "streams/storage/file"):
		return "the format of the store is of another version.*mark it again"
	}
	return ""
}

// buildPrevious builds the images millrace:previous and millrace-example:previous.
func buildPrevious(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	mustRun(t, nil, "bash", "-c", fmt.Sprintf("git archive %s | tar -x -C %s", previous(), quote([]string{dir})))
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

// storeScript stores the files that a list names through the decorator, from the directory where it runs.
func storeScript(space, list string) string {
	return list + ` | decorator -brokers "$(echo "$MILLRACE_KAFKA__BROKERS" | tr -d '[]"')" -account acme -store 1 ` +
		`-space ` + space + ` -wait 5m -root /var/lib/millrace/primary -outbox /var/lib/millrace/outbox-` + space +
		` -user e2e >&2; `
}

// store stores files in a space.
func store(t *testing.T, p *project, space string, files int) {
	t.Helper()
	out, code := p.script(t, "cd $(mktemp -d); "+storeScript(space,
		fmt.Sprintf("for n in $(seq %d); do seq $n 2000 >$n.txt; echo $n.txt; done", files)))
	if code != 0 {
		t.Fatalf("store files in %s: code %d\n%s", space, code, out)
	}
}

// copied waits until store 3 has the files of a space as store 1 has them.
func copied(t *testing.T, p *project, space string, files int) {
	t.Helper()
	text := fmt.Sprintf(
		`cd /var/lib/millrace; [ "$(find vault/%s -type f | wc -l)" = %d ] && diff -rq {primary,vault}/%[1]s`, space, files)
	eventually(t, func() string {
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
	must(t, os.WriteFile(drain, []byte(text), 0o600))
	p.args = append(slices.Clone(args), "-f", drain)
	p.must(t, "up", "-d", "--no-deps", "--wait", "all")
	text = "d=$(mktemp -d -p /var/lib/millrace); cd $d; head -c 1500M /dev/zero >large; " +
		storeScript("large", "echo large") + "rm -r $d"
	if out, code := p.script(t, text); code != 0 {
		t.Fatalf("store a large file: code %d\n%s", code, out)
	}
	for stop := range 4 {
		eventually(t, func() string {
			if p.metric(t, `^millrace_kafka_working_tasks\{.*role="copier".*\} [1-9]`) {
				return ""
			}
			return fmt.Sprintf("no copy is running before stop %d: take a larger file", stop+1)
		})
		began := time.Now()
		p.must(t, "stop", "--timeout", "90", "all")
		if took := time.Since(began); took > time.Minute { // Docker would kill it after 90 s
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

// kills kills each container in turn while files are stored.
func kills(t *testing.T, p *project) {
	writer := p.name + "-writer"
	t.Cleanup(func() { _, _ = command(nil, "docker", "rm", "--force", writer) }) // after a failure
	for _, service := range []string{"all", "kafka-1", "clickhouse", "s3"} {
		space := "killed-" + service
		// A file each 80 ms, and 20 more when the container is killed and started again.
		script := "set -euo pipefail; cd $(mktemp -d); " + storeScript(space, `n=0; left=20; while [ $left -gt 0 ]; do `+
			`n=$((n + 1)); seq $n 2000 >$n.txt; echo $n.txt; sleep 0.08; [ ! -e /tmp/killed ] || left=$((left - 1)); done`) +
			"find /var/lib/millrace/primary/" + space + " -type f | wc -l >&2" // like all output, so that it is the last line
		type stored struct {
			out string
			err error
		}
		ended := make(chan stored, 1)
		go func() {
			out, err := command(p.env, "bash", "-c", compose(append(p.args, "run", "--rm", "--no-deps", "-T", "--name", writer,
				"prepare", "-c", script)))
			ended <- stored{out, err}
		}()
		eventually(t, func() string {
			out, code := run(t, nil, "docker", "exec", writer, "test", "-s",
				"/var/lib/millrace/primary/"+space+"/20.txt")
			if code != 0 {
				return "no files are stored: " + out
			}
			return ""
		})
		mustRun(t, nil, "docker", "kill", p.container(service))
		mustRun(t, nil, "docker", "start", p.container(service))
		mustRun(t, nil, "docker", "exec", writer, "touch", "/tmp/killed")
		s := <-ended
		lines := strings.Split(strings.TrimSpace(s.out), "\n")
		files, err := strconv.Atoi(lines[len(lines)-1])
		if s.err != nil || err != nil || files < 40 {
			t.Fatalf("store files while %s is killed: %v, %v\n%s", service, s.err, err, s.out)
		}
		copied(t, p, space, files)
	}
}

// noLoss compares Kafka with the tables and the stores with each other.
func noLoss(t *testing.T, p *project) {
	t.Helper()
	eventually(t, func() string {
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

// The commands of docs/deploy/compose.md, in its order, for the full form: three brokers and three processes.
func TestQuickStart(t *testing.T) {
	need.Images(t)
	page, err := os.ReadFile(filepath.Join(root, "docs/deploy/compose.md"))
	must(t, err)
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
	must(t, err)
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
