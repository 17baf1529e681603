package bench

import (
	"context"
	"crypto/md5" //nolint:gosec // a checksum, not a signature
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/inventory"
)

// check puts the files of the first store on record with their digests, and returns when a fixity round has checked
// each and every result is recorded. What precedes the round is not counted.
func (j *job) check(ctx context.Context) (res sideResult, err error) {
	if err := j.recordFiles(ctx); err != nil {
		return res, err
	}
	if err := j.app.CatchUp(ctx); err != nil {
		return res, err
	}
	stop, err := j.profile()
	if err != nil {
		return res, err
	}
	defer stop()
	before, err := processorTime(os.Getpid())
	if err != nil {
		return res, err
	}
	start := time.Now()
	rounds, err := j.app.SweepFixity(ctx, app.FixityRequest{Account: mainAccount, Store: primary,
		Begun: start.UTC().Truncate(time.Millisecond), AnyAge: true, Detach: true})
	if err != nil {
		return res, err
	}
	if len(rounds) != 1 || rounds[0].Emitted != int64(j.Items) {
		return res, fmt.Errorf("the round requested other than %d checks: %v", j.Items, rounds)
	}
	// The polls cost little: one of the verified copies costs as much as two thousand checks.
	_, err = waitCount(ctx, j.Items, 0, func() (int, error) {
		n, err := read.CountFinal(ctx, j.app.DB(), rounds[0].ID)
		return int(n), err
	})
	if err != nil {
		return res, err
	}
	_, err = waitCount(ctx, j.Items, 0, func() (int, error) { // another group writes the state
		n, err := j.app.Lag(ctx, schemas.RoleState)
		return j.Items - int(n), err
	})
	if err != nil {
		return res, err
	}
	res = sideResult{Records: int64(j.Items), Seconds: time.Since(start).Seconds()}
	after, err := processorTime(os.Getpid())
	if err != nil {
		return res, err
	}
	res.CPU = after - before
	stop()
	_, err = j.waitRecorded(ctx, j.Items, 0, func(_ string, n copyCounts) int { return int(n.Verified) })
	return res, err
}

// profile starts a CPU profile of this process, if one is wanted.
func (j *job) profile() (stop func(), err error) {
	if j.Profile == "" {
		return func() {}, nil
	}
	f, err := os.Create(j.Profile)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

// recordFiles publishes a Change with digests for each file.
func (j *job) recordFiles(ctx context.Context) error {
	producer, err := app.OpenProducer(ctx, j.cfg, slog.New(slog.DiscardHandler), "bench")
	if err != nil {
		return err
	}
	defer producer.Close()
	target := inventory.Target{Account: mainAccount, Store: primary, Space: space, Now: time.Now()}
	var changes []schemas.Message
	for i := range j.Items {
		name := j.file(i)
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		bytes, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		m, s := md5.Sum(bytes), sha256.Sum256(bytes) //nolint:gosec // a checksum, not a signature
		c, err := target.Change(inventory.Entry{Item: item(i), Key: true, Size: info.Size(), Time: info.ModTime(),
			Digests: digest.Set{digest.MD5: hex.EncodeToString(m[:]), digest.SHA256: hex.EncodeToString(s[:])}})
		if err != nil {
			return err
		}
		changes = append(changes, schemas.Message{Topic: schemas.Changes, Body: c})
	}
	if err := producer.Publish(ctx, changes...); err != nil {
		return err
	}
	_, err = j.waitRecorded(ctx, j.Items, 0, func(_ string, n copyCounts) int { return int(n.Live) })
	return err
}

func (j *job) file(i int) string { return filepath.Join(j.Dir, "store-"+primary, item(i)) }

// HashLoop reads and hashes the files of a directory one after the other, and returns the line to print.
func HashLoop(dir string) ([]byte, error) {
	files, err := filesBelow(dir)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return nil, err
		}
		_, _ = md5.Sum(content), sha256.Sum256(content) //nolint:gosec // checksums, not signatures
	}
	return json.Marshal(sideResult{Records: int64(len(files)), Seconds: time.Since(start).Seconds()})
}

// clockTicks is the number of clock ticks per second in /proc.
const clockTicks = 100

// processorTime returns the processor time that a process, and those that it has started and that run, have taken.
func processorTime(pid int) (seconds float64, err error) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // after the name, the fields from the third on
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("read the processor time of process %d: %q", pid, stat)
	}
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
		}
		seconds += float64(n) / clockTicks
	}
	lists, err := filepath.Glob(filepath.Join(dir, "task", "*", "children"))
	if err != nil {
		return 0, err
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if errors.Is(err, os.ErrNotExist) { // the thread has ended
			continue
		} else if err != nil {
			return 0, err
		}
		for _, child := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(child)
			if err != nil {
				return 0, err
			}
			more, err := processorTime(n)
			if err != nil && !errors.Is(err, os.ErrNotExist) { // it has ended: its time counts no more
				return 0, err
			}
			seconds += more
		}
	}
	return seconds, nil
}
