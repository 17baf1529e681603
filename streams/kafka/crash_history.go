package kafka

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// killed is in how many processes that died a message may have been at work before it is
// taken for the cause.
const maxDeaths = 3

// maxPast bounds what is told of deaths in a commit: brokers take 4 KiB of metadata.
const maxMetadata = 3800

// A past is what a partition's committed metadata tells of the processes that had it: which
// messages were at work when one died. As text it is
//
//	millrace/1 open 120 ahead=110/3:AAI 45:1* 47:2 48:0
//
// open or closed says whether tasks may have been at work; 120 is the horizon; 45 and 47 are
// offsets of messages that were at work in 1 and 2 deaths, and 45 is at work now. 48 is at work too, and gets on:
// if the process dies, it is not the cause. Below 110, of leader epoch 3, all is done but for 45 and 47: from the commit on,
// the steps to them are 0 and 2 (varints in base64).
type crashHistory struct {
	deaths    map[int64]int
	completed completedAhead
	// horizon: a message below it may have been at work in a death although that was not
	// recorded, since what is begun is told once a second. From then on, until the horizon is
	// passed, it is told before a message is begun.
	horizon int64
}

const metadataVersion = "millrace/1"

// An ahead says what is done behind the commit: the records below end but for those that are left. A record of a later
// leader epoch was written there after the log had lost its end, and is not done.
type completedAhead struct {
	end        kgo.EpochOffset // zero: nothing is known to be
	unfinished []int64         // in order
}

func (a *completedAhead) isDone(offset int64, epoch int32) bool {
	if offset >= a.end.Offset || epoch > a.end.Epoch {
		return false
	}
	_, left := slices.BinarySearch(a.unfinished, offset)
	return !left
}

// maxAhead bounds the word of an ahead in a commit: it has room for maxLate records that lie no further apart than a window.
const maxCompletedBytes = maxMetadata - 1000

const completedPrefix = "ahead="

// word returns a as a word behind the commit, and the end that it names. If there is no room for all that is left, that is
// the first record without.
func (a *completedAhead) encode(committed int64) (word string, end int64) {
	if a.end.Offset <= committed {
		return "", committed
	}
	var left []byte
	last, end := committed, a.end.Offset
	for _, at := range a.unfinished {
		if at < committed {
			continue
		}
		if base64.RawURLEncoding.EncodedLen(len(left)+binary.MaxVarintLen64) > maxCompletedBytes {
			end = at
			break
		}
		left = binary.AppendUvarint(left, uint64(at-last))
		last = at
	}
	return fmt.Sprintf(" %s%d/%d:%s", completedPrefix, end, a.end.Epoch, base64.RawURLEncoding.EncodeToString(left)), end
}

// readAhead is the inverse of word. Of what it cannot read nothing is done.
func parseCompletedAhead(word string, committed int64) (a completedAhead) {
	word, ok := strings.CutPrefix(word, completedPrefix)
	end, left, parted := strings.Cut(word, ":")
	offset, epoch, whole := strings.Cut(end, "/")
	at, err1 := strconv.ParseInt(offset, 10, 64)
	of, err2 := strconv.ParseInt(epoch, 10, 32)
	if !ok || !parted || !whole || err1 != nil || err2 != nil || at <= committed {
		return a
	}
	steps, err := base64.RawURLEncoding.DecodeString(left)
	if err != nil {
		return a
	}
	for last := committed; len(steps) > 0; {
		step, n := binary.Uvarint(steps)
		if n <= 0 || step > uint64(at-last) {
			return completedAhead{}
		}
		last += int64(step)
		a.unfinished = append(a.unfinished, last)
		steps = steps[n:]
	}
	a.end = kgo.EpochOffset{Epoch: int32(of), Offset: at}
	return a
}

// A pursuit is what handlers have of a partition, by offset.
type runningOffsets struct {
	suspect     []int64 // begun a short time ago, or without progress since
	progressing []int64 // the others
}

// readPast reads metadata as an owner finds it: if the one before is gone, what was at work then has died.
// committed is the offset of the commit, window how far ahead tasks may have been begun.
func parseCrashHistory(text string, committed int64, window int, gone bool) crashHistory {
	p := crashHistory{deaths: map[int64]int{}}
	words := strings.Fields(text)
	if len(words) < 3 || words[0] != metadataVersion {
		return p
	}
	died := gone && words[1] == "open"
	p.horizon, _ = strconv.ParseInt(words[2], 10, 64) // 0: none
	if len(words) > 3 {
		p.completed = parseCompletedAhead(words[3], committed)
	}
	begun := max(committed, p.completed.end.Offset)
	for _, w := range words[3:] { // that of an ahead is none of these
		w, atWork := strings.CutSuffix(w, "*")
		offset, n, ok := strings.Cut(w, ":")
		at, err1 := strconv.ParseInt(offset, 10, 64)
		deaths, err2 := strconv.Atoi(n)
		if !ok || err1 != nil || err2 != nil || at < committed {
			continue
		}
		if atWork && died {
			deaths++
		}
		p.deaths[at] = deaths
	}
	if died && p.horizon <= begun {
		p.horizon = begun + int64(window)
	} else if p.horizon <= committed {
		p.horizon = 0
	}
	maps.DeleteFunc(p.deaths, func(at int64, n int) bool { return n == 0 && at >= p.horizon }) // as any other
	return p
}

// of returns in how many deaths the message at offset may have been at work, and whether it
// must be told before it is begun.
func (p *crashHistory) deathsOf(offset int64) (deaths int, careful bool) {
	if p.horizon == 0 && len(p.deaths) == 0 {
		return 0, false
	}
	deaths, known := p.deaths[offset]
	if !known && offset < p.horizon {
		deaths = 1
	}
	return deaths, known || offset < p.horizon
}

// text is what is committed with committed, while handlers have the messages of now, and more is done than was before. done
// is below which offset all is done by it, but what it names.
func (p *crashHistory) encode(open bool, committed int64, now runningOffsets, more completedAhead) (text string, done int64) {
	type suspect struct {
		offset int64
		deaths int
		now    bool
	}
	var all []suspect
	for _, at := range now.suspect {
		n, _ := p.deathsOf(at)
		all = append(all, suspect{at, n, true})
	}
	for _, at := range now.progressing {
		if open || at < p.horizon { // else it is as any other
			all = append(all, suspect{at, 0, false})
		}
	}
	for at, n := range p.deaths {
		if at >= committed && !slices.Contains(now.suspect, at) && !slices.Contains(now.progressing, at) {
			all = append(all, suspect{at, n, false})
		}
	}
	horizon := p.horizon
	if horizon <= committed {
		horizon = 0
	}
	if more.end.Offset < p.completed.end.Offset { // what was done before is not all read yet
		more = p.completed
	}
	word, done := more.encode(committed)
	if !open && horizon == 0 && len(all) == 0 && word == "" {
		return "", done
	}
	slices.SortFunc(all, func(a, b suspect) int { return cmp.Or(b.deaths-a.deaths, cmp.Compare(a.offset, b.offset)) })
	var b strings.Builder
	b.WriteString(metadataVersion)
	b.WriteString(map[bool]string{true: " open ", false: " closed "}[open])
	b.WriteString(strconv.FormatInt(horizon, 10))
	b.WriteString(word)
	for _, s := range all {
		if b.Len() > maxMetadata {
			break
		}
		b.WriteString(" " + strconv.FormatInt(s.offset, 10) + ":" + strconv.Itoa(s.deaths))
		if s.now {
			b.WriteByte('*')
		}
	}
	return b.String(), done
}
