// Package need says which tests run where, and is the only place that skips one.
//
// There are three levels. "make test" runs what is quick. "make integration" sets MILLRACE_INTEGRATION and adds the
// tests of real servers, of kills and of many rows; with "short" as its value, which CI uses, only part of them.
// "make soak" sets MILLRACE_SOAK as well and repeats what a longer run may break.
//
// A test that lacks something calls Missing. That skips it on a person's machine, and fails it where CI is set and the
// thing can be had there: a CI run that skips what it could test passes for the wrong reason.
package need

import (
	"flag"
	"os"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// The variables that set the level. They are set by the Makefile.
const (
	integrationEnv = "MILLRACE_INTEGRATION"
	soakEnv        = "MILLRACE_SOAK"
	short          = "short"
)

// A Thing is something outside of the project that some tests need.
type Thing struct {
	name   string
	remedy string
	inCI   bool // .ci/run provides it
}

// ClickHouse is a server, or the embedded engine.
func ClickHouse() Thing { return Thing{"ClickHouse", "npm, or a clickhouse binary on PATH", true} }

// Kafka is one or more real brokers, in any form.
func Kafka() Thing { return Thing{"Kafka", "a JDK and Maven, or Docker, or MILLRACE_TEST_KAFKA", true} }

// S3 is a real S3 server.
func S3() Thing { return Thing{"an S3 server", "make servers, or MILLRACE_TEST_S3", true} }

// Docker is a daemon that answers, with images that can be had or built without a network.
func Docker() Thing { return Thing{"Docker", "a daemon and the images", false} }

// Program is a program on PATH that .ci/run installs.
func Program(name string) Thing { return Thing{name, "install " + name, true} }

// Kernel is a feature of this system: a file system, a mount, a file under /proc.
func Kernel(feature string) Thing { return Thing{feature, "another kernel or file system", false} }

// Behaviour is a property of a server that was found at run time, and that another version or form of it has.
func Behaviour(of string) Thing { return Thing{of, "another version of the server", false} }

// Server is a server that a test may change or break, which a named one is not.
func Server() Thing { return Thing{"a server of its own", "unset the variable that names one", false} }

// Missing skips the test, because thing is not there for the reason given. Where CI is set and .ci/run provides
// the thing, it fails the test instead.
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

// Full skips a test that neither "make test" nor the short form of "make integration" runs.
func Full(tb testing.TB) {
	tb.Helper()
	if v := os.Getenv(integrationEnv); v == "" || v == short {
		tb.Skip("runs in the full form of make integration")
	}
}

// Amount returns how many cases, rows or kills a test uses: quick in "make test" and in the short form of
// "make integration", full in its full form, soak in "make soak".
func Amount(quick, full, soak int) int {
	switch v := os.Getenv(integrationEnv); {
	case os.Getenv(soakEnv) != "":
		return soak
	case v != "" && v != short:
		return full
	}
	return quick
}

// Check is rapid.Check with few cases in "make test" and many in "make integration". The flag -rapid.checks, if it
// is given, wins.
func Check(tb rapid.TB, property func(*rapid.T)) {
	tb.Helper()
	setChecks()
	rapid.Check(tb, property)
}

// setChecks sets rapid's flag once: rapid reads it at each check and has no other setting.
var setChecks = sync.OnceFunc(func() {
	const name = "rapid.checks"
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if !given {
		_ = flag.Set(name, strconv.Itoa(Amount(25, 200, 2000)))
	}
})
