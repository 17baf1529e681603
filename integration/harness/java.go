package harness

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// minJava is the oldest Java version that runs the brokers.
const minJava = 17

var javaVersion = regexp.MustCompile(`version "((\d+)[^"]*)"`)

// findJava returns the path and version of a java that is new enough.
func findJava(ctx context.Context) (java, version string, err error) {
	var candidates []string
	if home := os.Getenv("JAVA_HOME"); home != "" {
		candidates = append(candidates, filepath.Join(home, "bin", "java"))
	}
	if onPath, err := exec.LookPath("java"); err == nil {
		candidates = append(candidates, onPath)
	}
	for _, usual := range []string{
		"/usr/lib/jvm/*/bin/java", "/opt/java/*/bin/java", "/opt/jdk*/bin/java",
		"/Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
	} {
		found, err := filepath.Glob(usual)
		if err != nil {
			return "", "", err
		}
		candidates = append(candidates, found...)
	}
	last := unavailable("no java in JAVA_HOME, on PATH, or in the usual directories")
	for _, java := range candidates {
		out, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
		if err != nil {
			last = unavailable("get the version of %s: %w", java, err)
			continue
		}
		version, major := parseJava(string(out))
		if major >= minJava {
			return java, version, nil
		}
		last = unavailable("%s is Java %q, and the brokers need %d", java, version, minJava)
	}
	return "", "", last
}

// parseJava parses the output of java -version. It returns 0 if the output has no version.
func parseJava(output string) (version string, major int) {
	m := javaVersion.FindStringSubmatch(output)
	if m == nil {
		return "", 0
	}
	major, err := strconv.Atoi(m[2])
	if err != nil {
		return m[1], 0
	}
	return m[1], major
}
