package testnet

// Here is the host that the tests themselves run on. In a VM of its own a test may change that one too.
func Here() *Host { return here }
