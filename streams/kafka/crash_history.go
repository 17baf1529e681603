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

// maxDeaths is the number of process deaths after which a message that was running in each becomes a dead
// letter.
const maxDeaths = 3

// maxMetadata bounds the metadata of a commit. Brokers accept 4 KiB.
const maxMetadata = 3800

// A crashHistory is what the committed metadata of a partition records about its previous owners: which
// messages were running when a process died, and which messages after the committed offset are done. Its text
// form is
//
//	millrace/1 K7QX open 120 ahead=110/3:AAI 45:1* 47:2 48:0
//
// K7QX is the Pool that has written it. "open" means that tasks may be running, "closed" that none are. 120 is the
// horizon. 45 and 47 are offsets of messages that were running in 1 and 2 deaths; * means that 45 is running now. 48
// is running too and makes progress: if the process dies, 48 is not the cause. All records below offset 110, of leader
// epoch 3, are done except 45 and 47, encoded as their distances 0 and 2 from the commit (varints in base64).
type crashHistory struct {
	deaths    map[int64]int
	completed completedAhead
	// horizon: messages below it may have been running at a death without a record, because running tasks are
	// recorded only once a second, or when half a window was done since. Until the horizon is passed, each message is
	// recorded before it starts.
	horizon int64
}

const metadataVersion = "millrace/1"

// A completedAhead lists what is done beyond the committed offset: all records below end except the
// unfinished ones. A record with a later leader epoch than end replaced one that the log lost, and is not
// done.
type completedAhead struct {
	end        kgo.EpochOffset // zero: nothing is known to be done
	unfinished []int64         // ascending
}

func (a *completedAhead) isDone(offset int64, epoch int32) bool {
	if offset >= a.end.Offset || epoch > a.end.Epoch {
		return false
	}
	_, left := slices.BinarySearch(a.unfinished, offset)
	return !left
}

// maxCompletedBytes bounds the text of a completedAhead in a commit. It has room for maxStragglers records,
// none further from the one before than a window.
const maxCompletedBytes = maxMetadata - 1000

const completedPrefix = "ahead="

// encode returns the text of a after the committed offset. If there is no room for all unfinished records, its end is
// the first one left out.
func (a *completedAhead) encode(committed int64) string {
	if a.end.Offset <= committed {
		return ""
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
	return fmt.Sprintf(" %s%d/%d:%s", completedPrefix, end, a.end.Epoch, base64.RawURLEncoding.EncodeToString(left))
}

// parseCompletedAhead is the inverse of encode. If the text is invalid, nothing counts as done.
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

// parseCrashHistory parses the metadata that the owner self finds. If another one has written it, that one no longer
// exists, and its running tasks have died. If self has, only the session was lost. committed is the committed offset,
// window how far beyond it tasks may have started.
func parseCrashHistory(text string, committed int64, window int, self string) crashHistory {
	c := crashHistory{deaths: map[int64]int{}}
	words := strings.Fields(text)
	if len(words) < 4 || words[0] != metadataVersion {
		return c
	}
	died := words[1] != self && words[2] == "open"
	c.horizon, _ = strconv.ParseInt(words[3], 10, 64) // 0: no horizon
	if len(words) > 4 {
		c.completed = parseCompletedAhead(words[4], committed)
	}
	begun := max(committed, c.completed.end.Offset)
	for _, w := range words[4:] { // the text of a completedAhead does not parse as one of these
		w, running := strings.CutSuffix(w, "*")
		offset, n, ok := strings.Cut(w, ":")
		at, err1 := strconv.ParseInt(offset, 10, 64)
		deaths, err2 := strconv.Atoi(n)
		if !ok || err1 != nil || err2 != nil || at < committed {
			continue
		}
		if running && died {
			deaths++
		}
		c.deaths[at] = deaths
	}
	if died && c.horizon <= begun {
		c.horizon = begun + 2*int64(window) // half a window may have been done since the commit, and the next one begun
	} else if c.horizon <= committed {
		c.horizon = 0
	}
	maps.DeleteFunc(c.deaths, func(at int64, n int) bool { return n == 0 && at >= c.horizon }) // they need no entry
	return c
}

// deathsOf returns the number of deaths in which the message at offset may have been running, and whether it
// must be recorded before it starts.
func (c *crashHistory) deathsOf(offset int64) (deaths int, mustRecord bool) {
	if c.horizon == 0 && len(c.deaths) == 0 {
		return 0, false
	}
	deaths, known := c.deaths[offset]
	if !known && offset < c.horizon {
		deaths = 1
	}
	return deaths, known || offset < c.horizon
}

// encode returns the metadata of owner self for a commit of committed. running are the offsets of the running tasks,
// and whether each is suspect. more are the newly completed records.
func (c *crashHistory) encode(
	self string, open bool, committed int64, running map[int64]bool, more completedAhead,
) string {
	named := map[int64]string{} // the deaths of each offset
	for at, n := range c.deaths {
		if at >= committed {
			named[at] = strconv.Itoa(n)
		}
	}
	for at, suspect := range running {
		switch n, _ := c.deathsOf(at); {
		case suspect:
			named[at] = strconv.Itoa(n) + "*"
		case open || at < c.horizon:
			named[at] = "0"
		default: // it needs no entry
			delete(named, at)
		}
	}
	horizon := c.horizon
	if horizon <= committed {
		horizon = 0
	}
	if more.end.Offset < c.completed.end.Offset { // the records that were done before are not all read yet
		more = c.completed
	}
	word := more.encode(committed)
	if !open && horizon == 0 && len(named) == 0 && word == "" {
		return ""
	}
	state := map[bool]string{true: "open", false: "closed"}[open]
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s %s %d%s", metadataVersion, self, state, horizon, word)
	for _, at := range slices.SortedFunc(maps.Keys(named), func(a, b int64) int {
		return cmp.Or(cmp.Compare(named[b], named[a]), cmp.Compare(a, b)) // those with the most deaths first
	}) {
		if text.Len() > maxMetadata {
			break
		}
		fmt.Fprintf(&text, " %d:%s", at, named[at])
	}
	return text.String()
}
