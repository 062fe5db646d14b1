"""HTTP/1.1 on trio, both sides of it: h11 reads and writes the protocol, this package the sockets. Knows no product.

`server` serves listeners, `client` is a pool of connections to one address. Extra `gateway`.
"""
