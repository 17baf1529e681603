
 4f0c2f9f0f4d4f8f9a7c3c1d5e6b7a89acmephotos"2020/film.mov*1228@J 7b1dd1a5f3a34b3d0c3f6dbeab3c0f11PZ†ô‡œ¿ÃçàíA'
md5 d41d8cd98f00b204e9800998ecf8427e:†ô‡œ¿Ãçhp†≤Êô‡œ¿˘Ô