package nft

import "slices"

// lookup asks a set. Of a verdict map it tells the verdict too; where it is not known, forks has those that may be.
func (j *judge) lookup(c *placed, e Expr) (yes, known bool, verdict string) {
	j.forks = nil
	i := slices.IndexFunc(j.sets, func(s placedSet) bool {
		return s.family == c.family && s.table == c.table && s.Name == e.data[1]
	})
	if i < 0 {
		j.forget(e.num[3])
		return true, false, ""
	}
	s := j.sets[i]
	n := int(s.Keys.size)
	key, sure := j.take(e.num[2], n)
	key, sure = slices.Clone(key), slices.Clone(sure)
	isMap, isVerdict := s.Flags&setMap != 0, s.Values.number == verdicts
	if isMap && !isVerdict {
		j.forget(e.num[3])
	}
	if !isVerdict && !slices.Contains(sure, true) {
		return true, false, ""
	}
	elements, err := j.elements(s)
	if err != nil {
		j.failed = err
		j.may = j.may || isVerdict // where it leads is not known
		return true, false, ""
	}
	found, known := holds(s.Set, elements, key, sure)
	inverted := e.num[5]&1 != 0 // NFT_LOOKUP_F_INV
	switch {
	case (!known || found != nil && found.flags&hedged != 0) && isVerdict:
		j.forks = leads(s.Set, elements, key, sure)
		return true, false, ""
	case !known || found != nil && found.flags&hedged != 0:
		return true, false, ""
	case found == nil || inverted:
		return (found == nil) == inverted, true, ""
	case isVerdict:
		return true, true, found.Value
	case isMap:
		j.set(e.num[3], []byte(found.Value))
	}
	return true, true, ""
}

// leads are the verdicts of all elements that a key may be.
func leads(s Set, elements []Element, key []byte, sure []bool) (out []string) {
	there := map[string]bool{}
	for _, e := range elements {
		if e.flags&(catchAll|ranged) == 0 && s.Flags&intervals == 0 {
			if yes, _ := equal(key, sure, e.Key); !yes {
				continue
			}
		}
		if e.Value != "" && !there[e.Value] {
			there[e.Value] = true
			out = append(out, e.Value)
		}
	}
	return out
}

// holds finds a key in a set's elements; nil is none.
func holds(s Set, elements []Element, key []byte, sure []bool) (found *Element, known bool) {
	complete := !slices.Contains(sure, false)
	var all *Element
	known = true
	for i := range elements {
		e := &elements[i]
		switch {
		case e.flags&catchAll != 0:
			all = e
		case e.flags&ranged != 0:
			return nil, false // of several parts, each from here to there
		case s.Flags&intervals != 0:
			if !complete {
				return nil, false
			}
			if e.Key <= string(key) && (found == nil || e.Key > found.Key || e.Key == found.Key && e.flags&intervalEnd == 0) {
				found = e
			}
		default:
			yes, certain := equal(key, sure, e.Key)
			if yes && certain {
				return e, true
			}
			known = known && (certain || !yes)
		}
	}
	if found != nil && found.flags&intervalEnd != 0 {
		found = nil
	}
	if found == nil && known {
		found = all
	}
	return found, known
}
