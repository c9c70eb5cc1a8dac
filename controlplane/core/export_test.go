package core

// IdempotencyID returns the id of a key's row.
var IdempotencyID = idempotencyID

// Turns returns how many requests have the turn of a workspace's key, or wait for it.
func (c *Core) Turns(i Idempotency) int {
	c.creates.mu.Lock()
	defer c.creates.mu.Unlock()
	if one := c.creates.of[i.digest()]; one != nil {
		return one.users
	}
	return 0
}
