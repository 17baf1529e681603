// Package need decides which tests run at which level, and is the only place that skips tests.
//
// There are three levels. "make test" runs the quick tests. "make integration" sets MILLRACE_INTEGRATION and adds tests
// of real servers, of killed processes and of many rows; the value "short", which CI uses, runs only some of them.
// "make soak" also sets MILLRACE_SOAK and runs with the largest amounts.
// "make e2e" sets MILLRACE_IMAGES and runs the tests of the images alone.
//
// A test that lacks a requirement calls Missing. Missing skips the test on a developer's machine, and fails it if CI is
// set and CI provides the requirement. Otherwise CI would pass without running the test.
package need

import (
	"flag"
	"os"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// Environment variables of the level. The Makefile sets them.
const (
	integrationEnv = "MILLRACE_INTEGRATION"
	soakEnv        = "MILLRACE_SOAK"
	imagesEnv      = "MILLRACE_IMAGES"
	short          = "short"
)

// Thing is an external requirement of some tests.
type Thing struct {
	name   string
	remedy string
	inCI   bool // .ci/run provides it
}

// ClickHouse is a ClickHouse server or the embedded engine.
func ClickHouse() Thing { return Thing{"ClickHouse", "npm, or a clickhouse binary on PATH", true} }

// Kafka is one or more Kafka brokers, in any form.
func Kafka() Thing { return Thing{"Kafka", "a JDK and Maven, or Docker, or MILLRACE_TEST_KAFKA", true} }

// S3 is an S3 server.
func S3() Thing { return Thing{"an S3 server", "make servers, or MILLRACE_TEST_S3", true} }

// Docker is a running daemon, and images that exist or can be built without a network.
func Docker() Thing { return Thing{"Docker", "a daemon and the images", false} }

// Packager is the program that makes the packages, built from tools/deploy.
func Packager() Thing { return Thing{"nfpm", "make packages", true} }

// Program is a program on PATH that .ci/run installs.
func Program(name string) Thing { return Thing{name, "install " + name, true} }

// Kernel is a feature of this system: a file system, a mount, a file under /proc.
func Kernel(feature string) Thing { return Thing{feature, "another kernel or file system", false} }

// Root is the user root, which can run a process as another user.
func Root() Thing { return Thing{"root", "run the test as root", false} }

// Behaviour is a property of a server, detected at run time, that other versions or forms of the server have.
func Behaviour(of string) Thing { return Thing{of, "another version of the server", false} }

// Server is a server that a test may change or break. Named servers are not.
func Server() Thing { return Thing{"a dedicated server", "unset the variable with its address", false} }

// Missing skips the test because thing is missing for the given reason. If CI is set and .ci/run provides the thing,
// Missing fails the test.
func Missing(tb testing.TB, thing Thing, reason any) {
	tb.Helper()
	if thing.inCI && os.Getenv("CI") != "" {
		tb.Fatalf("needs %s, which CI has (%s): %v", thing.name, thing.remedy, reason)
		return
	}
	tb.Skipf("needs %s (%s): %v", thing.name, thing.remedy, reason)
}

// Integration skips a test that "make test" does not run.
func Integration(tb testing.TB) {
	tb.Helper()
	if os.Getenv(integrationEnv) == "" {
		tb.Skip("runs in make integration")
	}
}

// Full skips a test that only the full form of "make integration" and "make soak" run.
func Full(tb testing.TB) {
	tb.Helper()
	if v := os.Getenv(integrationEnv); v == "" || v == short {
		tb.Skip("runs in the full form of make integration")
	}
}

// Images skips a test that only "make e2e" runs: a test of the images, which needs a Docker Engine.
func Images(tb testing.TB) {
	tb.Helper()
	if os.Getenv(imagesEnv) == "" {
		tb.Skip("runs in make e2e")
	}
}

// Amount returns the number of cases, rows or kills of a test: quick in "make test" and in the short form of "make
// integration", full in its full form, soak in "make soak".
func Amount(quick, full, soak int) int {
	switch v := os.Getenv(integrationEnv); {
	case os.Getenv(soakEnv) != "":
		return soak
	case v != "" && v != short:
		return full
	}
	return quick
}

// Check is rapid.Check with a number of cases for the level: few in "make test", many in "make integration". The flag
// -rapid.checks overrides it.
func Check(tb rapid.TB, property func(*rapid.T)) {
	tb.Helper()
	setChecks()
	rapid.Check(tb, property)
}

// setChecks sets rapid's flag once. rapid reads the flag at each check and has no other setting.
var setChecks = sync.OnceFunc(func() {
	const name = "rapid.checks"
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if !given {
		_ = flag.Set(name, strconv.Itoa(Amount(25, 200, 2000)))
	}
})
