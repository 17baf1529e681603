package health

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notifyInterval is the time between two looks at the state for the service manager.
const notifyInterval = time.Second

// Notified reports whether a service manager waits for messages (sd_notify(3)): NOTIFY_SOCKET is set.
func Notified() bool { return os.Getenv("NOTIFY_SOCKET") != "" }

// Notify sends the state of the process to the service manager until ctx is done: that the process has
// started and that it stops, each once, a line of status whenever that changes, and, at half of
// WATCHDOG_USEC, that the process is live. A process that is not live sends no such message, so that the
// service manager restarts it. End ctx only when the parts of the process have stopped.
func (m *Monitor) Notify(ctx context.Context) error {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("read the limit of the watchdog: %w", err)
	}
	n := notices{watchdog: limit / 2}
	tick := time.NewTicker(n.interval())
	defer tick.Stop()
	stopping, failed, ended := m.stopping, false, false
	for {
		s := m.report().status
		messages, next := n.due(s, m.isEnding(), time.Now())
		var err error
		for _, message := range messages {
			_, sent := daemon.SdNotify(false, message)
			err = errors.Join(err, sent)
		}
		switch {
		case err == nil:
			n, failed = next, false
		case !failed: // the messages are sent again
			m.c.Log.Warn("notify the service manager", "err", err)
			failed = true
		}
		if ended {
			return nil
		}
		select {
		case <-ctx.Done():
			ended = true // once more: a process that stops at once says so too
		case <-stopping:
			stopping = nil // once; a nil channel is never ready
		case <-tick.C:
		}
	}
}

// notices are the messages that the service manager has.
type notices struct {
	watchdog time.Duration // between two messages that the process is live; 0: none

	ready, stopping bool
	status          string
	live            time.Time // of the last message that the process is live
}

func (n notices) interval() time.Duration {
	if n.watchdog > 0 {
		return min(notifyInterval, n.watchdog)
	}
	return notifyInterval
}

// due returns the messages that are due now, and the notices after they are sent. The status is a message of its own,
// so that the others do not depend on its text. The ticker may be early by a fraction of its interval, so a message of
// the watchdog is due that much before its time.
func (n notices) due(s status, ending bool, now time.Time) (all []string, next notices) {
	if s.Started && !n.ready {
		n.ready = true
		all = append(all, daemon.SdNotifyReady)
	}
	if ending && !n.stopping {
		n.stopping = true
		all = append(all, daemon.SdNotifyStopping)
	}
	if n.watchdog > 0 && s.Live && now.Sub(n.live) >= n.watchdog-n.interval()/2 {
		n.live = now
		all = append(all, daemon.SdNotifyWatchdog)
	}
	if len(all) > 0 {
		all = []string{strings.Join(all, "\n")}
	}
	if text := statusLine(s, ending); text != n.status {
		n.status = text
		all = append(all, "STATUS="+text)
	}
	return all, n
}

// statusLine returns the state in one line, with the first reason.
func statusLine(s status, ending bool) string {
	line := "not ready"
	switch {
	case ending:
		return "stopping"
	case !s.Live:
		line = "not live"
	case !s.Started:
		line = "starting"
	case s.Ready:
		return "ready"
	}
	if len(s.Reasons) > 0 {
		line += ": " + strings.Join(strings.Fields(s.Reasons[0]), " ")
	}
	if more := len(s.Reasons) - 1; more > 0 {
		line += fmt.Sprintf(" (and %d more)", more)
	}
	return plain(line)
}

// statusMost is the largest length of a status. systemd ignores messages above PIPE_BUF (4096), and those with a NUL.
const statusMost = 512

// plain returns text without control characters, cut to statusMost bytes.
func plain(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) <= statusMost {
		return text
	}
	const cut = "..."
	end := statusMost - len(cut)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + cut
}
