package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/millrace/millrace/bench/clickhousebench"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// Fixity measures checks and the log of checks, and returns the rows in table order.
func Fixity(ctx context.Context, cfg Config) (rows []Row, err error) {
	r := newRunner(cfg)
	return r.measure(ctx, r.fixityFigures())
}

// checkedSize is the size in bytes of the files that are checked.
const checkedSize = 10 << 10

func (r *runner) fixityFigures() []figure {
	a := r.amounts
	files := fmt.Sprintf("%s x %d KiB files", count(a.checked), checkedSize>>10)
	ratio := func(op string, bound float64) target { return target{op: op, bound: bound, ratio: true} }
	return []figure{
		{"checks: " + files + ", md5 and sha256, cache warm, each result on record", "checks/s",
			hashdeep + " -c md5,sha256, which records nothing", ratio(">=", 0.3),
			r.checkFiles(func(c checkCost) (float64, float64) { return c.rate, c.peerRate })},
		{"checks: processor time for them, with roles, broker and ClickHouse", "s", "a loop that reads and hashes the files",
			ratio("<=", 5.5), r.checkFiles(func(c checkCost) (float64, float64) { return c.cpu, c.loopCPU })},
		{fmt.Sprintf("checks: s3 in memory, %s x 10 KiB read, md5 and sha256", count(a.objects)), "items/s",
			"rclone hashsum md5 --download", ratio(">=", 2.5), r.compareRate(inMemory, "hash")},
		{fmt.Sprintf("reads: granules a part for the checks of one copy, %s rows", count(a.prefilled)), "granules", "",
			target{op: "<=", bound: 2}, r.checkHistory},
	}
}

// A checkCost is the cost of the checks of all files once. Peer values are 0 without the peer.
type checkCost struct{ rate, peerRate, cpu, loopCPU float64 }

// checkFiles returns a figure of the checks of files. The first one runs both sides in turns.
func (r *runner) checkFiles(of func(checkCost) (ours, peers float64)) func(context.Context) (measurement, error) {
	return func(ctx context.Context) (m measurement, err error) {
		if r.checks == nil {
			for range min(2, r.amounts.rounds) {
				c, err := r.checkOnce(ctx)
				if err != nil {
					return m, err
				}
				r.checks = append(r.checks, c)
			}
		}
		for _, c := range r.checks {
			ours, peer := of(c)
			m.ours = append(m.ours, ours)
			if peer > 0 {
				m.peers = append(m.peers, peer)
			} else if m.absent == "" {
				m.absent = "make peers, or apt-get install " + hashdeep // the loop is always there
			}
		}
		return m, nil
	}
}

func (r *runner) checkOnce(ctx context.Context) (c checkCost, err error) {
	n := r.amounts.checked
	return c, inTemp(func(dir string) error {
		res, err := runSide(ctx, r.cfg.Self, "rolesside", "--dir", dir, "--do", "check", "--items", fmt.Sprint(n))
		if err != nil {
			return err
		}
		c.rate, c.cpu = res.rate(), res.CPU
		files := filepath.Join(dir, "store-"+primary)
		loop, _, err := runMeasured(ctx, nil, r.cfg.Self, "hashloop", "--dir", files)
		if err != nil {
			return err
		}
		c.loopCPU = loop.cpu
		peer, err := exec.LookPath(hashdeep)
		if err != nil {
			return nil //nolint:nilerr // it is not installed
		}
		u, out, err := runMeasured(ctx, nil, peer, "-c", "md5,sha256", "-r", files)
		if err != nil {
			return err
		}
		if printed := bytes.Count(out, []byte(fmt.Sprintf("\n%d,", checkedSize))); printed != n {
			return fmt.Errorf("%s printed digests of %d of %d files", hashdeep, printed, n)
		}
		c.peerRate = float64(n) / u.seconds
		return nil
	})
}

// checkHistory measures how many granules per part the engine reads for the checks of one copy.
func (r *runner) checkHistory(ctx context.Context) (m measurement, err error) {
	s, err := r.newClickHouse(ctx)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	db, b, err := s.database(ctx, "millrace")
	if err != nil {
		return m, err
	}
	n := r.amounts.prefilled
	fmt.Fprintf(r.cfg.Progress, "    filling bit_log with %s rows\n", count(n))
	if err := b.Fill(ctx, clickhousebench.CheckRows(), n); err != nil {
		return m, err
	}
	copies := n / clickhousebench.ChecksOfACopy
	for _, i := range []int{0, copies / 7, copies/2 - 1} {
		space, item := clickhousebench.Item(i, copies)
		parts, err := b.Parts(ctx, "bit_log")
		if err != nil {
			return m, err
		}
		ctx, most := clickhousebench.Measured(ctx)
		checks, _, err := read.Checks(ctx, db, read.CheckQuery{Copy: schemas.Copy{Account: mainAccount, Store: primary,
			Space: space, Item: item}})
		if err != nil {
			return m, err
		}
		if len(checks) != clickhousebench.ChecksOfACopy {
			return m, fmt.Errorf("%d checks of %s/%s, want %d", len(checks), space, item, clickhousebench.ChecksOfACopy)
		}
		m.ours = append(m.ours, float64(most())/parts)
	}
	m.ours = []float64{slices.Max(m.ours)}
	return m, nil
}
