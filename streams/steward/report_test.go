package steward

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A storm is one line for each store and kind, half a minute after its first incident, and the last ones are reported
// when the process stops.
func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := newHarness(t)
		w.log = slog.New(slog.NewTextHandler(&log, nil))
		w.restart()
		want := func(due bool, lines ...string) {
			t.Helper()
			n := strings.Count(log.String(), `level=WARN msg="report incidents"`)
			for _, line := range lines {
				if !strings.Contains(log.String(), line) {
					n = -1
				}
			}
			if n != len(lines) || w.steward.ReportDue() != due {
				t.Errorf("due %v, want %v and %q: %s", !due, due, lines, &log)
			}
			log.Reset()
		}
		for k := range 300 {
			w.handle(w.result(2, of("a"+strconv.Itoa(k))))
		}
		w.handle(w.result(1, of("a0"))) // it passes before it is reported
		w.handle(w.result(13, of("b")))
		want(false)
		time.Sleep(reportAfter)
		want(true)
		w.steward.Report()
		want(false, "account=acme store=2 kind=content-corrupt count=300", "account=acme store=2 kind=replaced count=1")
		w.handle(w.result(2, of("a1"))) // seen again
		time.Sleep(reportAfter)
		want(false)
		w.handle(w.result(2, of("c")))
		w.steward.Report()
		w.steward.Report()
		want(false, "kind=content-corrupt count=1")
	})
}
