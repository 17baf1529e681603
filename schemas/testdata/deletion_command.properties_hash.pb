
 5d7a0c6e41b94a0f8d1c2b3a4f5e6d7cacmephotos"2020/film.mov22B 47dc22e01999939fcc48e92ec97d1f54J§öÚÏ€ÑÊR9
1777862521987000000-12345§™àÏ€ÑÊ “€€€€ ( İà°Šıf`r§™àÏ€ÑÊzeve@example.orgšit was deletedº)acme/2/photos/2020%2Ffilm.mov/resurrected