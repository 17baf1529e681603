package kafka

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// killed is in how many processes that died a message may have been at work before it is
// taken for the cause.
const killed = 3

// maxPast bounds what is told of deaths in a commit: brokers take 4 KiB of metadata.
const maxPast = 3800

// A past is what a partition's committed metadata tells of the processes that had it: which
// messages were at work when one died. As text it is
//
//	millrace/1 open 120 45:1* 47:2 48:0
//
// open or closed says whether tasks may have been at work; 120 is the horizon; 45 and 47 are
// offsets of messages that were at work in 1 and 2 deaths, and 45 is at work now. 48 is at work too, and gets on:
// if the process dies, it is not the cause.
type past struct {
	deaths map[int64]int
	// horizon: a message below it may have been at work in a death although that was not
	// recorded, since what is begun is told once a second. From then on, until the horizon is
	// passed, it is told before a message is begun.
	horizon int64
}

const pastForm = "millrace/1"

// A pursuit is what handlers have of a partition, by offset.
type pursuit struct {
	suspect []int64 // begun a short time ago, or without progress since
	steady  []int64 // the others
}

// readPast reads metadata as an owner finds it: if the one before is gone, what was at work then has died.
// committed is the offset of the commit, window how far ahead tasks may have been begun.
func readPast(text string, committed int64, window int, gone bool) past {
	p := past{deaths: map[int64]int{}}
	words := strings.Fields(text)
	if len(words) < 3 || words[0] != pastForm {
		return p
	}
	died := gone && words[1] == "open"
	p.horizon, _ = strconv.ParseInt(words[2], 10, 64) // 0: none
	for _, w := range words[3:] {
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
	if died && p.horizon <= committed {
		p.horizon = committed + int64(window)
	} else if p.horizon <= committed {
		p.horizon = 0
	}
	maps.DeleteFunc(p.deaths, func(at int64, n int) bool { return n == 0 && at >= p.horizon }) // as any other
	return p
}

// of returns in how many deaths the message at offset may have been at work, and whether it
// must be told before it is begun.
func (p *past) of(offset int64) (deaths int, careful bool) {
	if p.horizon == 0 && len(p.deaths) == 0 {
		return 0, false
	}
	deaths, known := p.deaths[offset]
	if !known && offset < p.horizon {
		deaths = 1
	}
	return deaths, known || offset < p.horizon
}

// text is what is committed with committed, while handlers have the messages of now.
func (p *past) text(open bool, committed int64, now pursuit) string {
	type suspect struct {
		offset int64
		deaths int
		now    bool
	}
	var all []suspect
	for _, at := range now.suspect {
		n, _ := p.of(at)
		all = append(all, suspect{at, n, true})
	}
	for _, at := range now.steady {
		if open || at < p.horizon { // else it is as any other
			all = append(all, suspect{at, 0, false})
		}
	}
	for at, n := range p.deaths {
		if at >= committed && !slices.Contains(now.suspect, at) && !slices.Contains(now.steady, at) {
			all = append(all, suspect{at, n, false})
		}
	}
	horizon := p.horizon
	if horizon <= committed {
		horizon = 0
	}
	if !open && horizon == 0 && len(all) == 0 {
		return ""
	}
	slices.SortFunc(all, func(a, b suspect) int { return cmp.Or(b.deaths-a.deaths, cmp.Compare(a.offset, b.offset)) })
	var b strings.Builder
	b.WriteString(pastForm)
	b.WriteString(map[bool]string{true: " open ", false: " closed "}[open])
	b.WriteString(strconv.FormatInt(horizon, 10))
	for _, s := range all {
		if b.Len() > maxPast {
			break
		}
		b.WriteString(" " + strconv.FormatInt(s.offset, 10) + ":" + strconv.Itoa(s.deaths))
		if s.now {
			b.WriteByte('*')
		}
	}
	return b.String()
}
